print("begin")
