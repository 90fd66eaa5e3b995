"""Traffic control: budgets, what falls under them, and what they admit. Pure."""
