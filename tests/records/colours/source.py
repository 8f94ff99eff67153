print(colours)
