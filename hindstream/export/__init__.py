"""Taking things out: archives of the log and of derived rows, and data sets in the shapes that other trainers read."""
