"""Show what training sees: tokens by their mask, what was cut, pairs side by side, and the curriculum."""
