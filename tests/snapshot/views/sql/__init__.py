"""SQL of views: what a program means, what it is refused for, and what makes two the same."""
