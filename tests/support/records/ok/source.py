import warnings

print("hello")
print("I am rank", rank, "of", size)
for epoch in range(3):
    print(f"epoch {epoch + 1}  loss {0.9 ** epoch:.3f}")
round(0.931, 3)
