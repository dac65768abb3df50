"""What passes ask of a program before they change it. Nothing here rewrites anything."""
