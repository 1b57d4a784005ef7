"""Write a first config from data: columns, lengths, steps and memory are measured before anything is asked."""
