"""PyTorch on a rank: torch.distributed released and set up again, and its work recorded."""
