import keras
import numpy as np

rng = np.random.default_rng(rank)
x = rng.random((2000, 16)).astype("float32")
y = x.sum(1) + rng.normal(size=2000)
model = keras.Sequential([keras.layers.Dense(64, activation="relu"), keras.layers.Dense(1)])
model.compile("adam", "mse")
print(f"rank {rank} of {size}: {len(x)} samples")
model.fit(x, y, epochs=3, batch_size=50, validation_split=0.2);
