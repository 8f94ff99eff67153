train()
