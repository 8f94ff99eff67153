import time

i = 0
while True:
    print("line", i)
    i += 1
    time.sleep(0.2)
