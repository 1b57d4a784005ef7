"""Check and measure the machine and the installation, and say what mends what is wrong."""
