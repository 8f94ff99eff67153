print("from the future")
