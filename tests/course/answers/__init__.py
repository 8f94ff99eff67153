"""What readers get wrong, and what a lesson claims, a module a lesson."""
