print(lines)
