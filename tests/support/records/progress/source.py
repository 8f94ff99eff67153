for batch in tqdm(range(100), "train"):
    step(batch)
