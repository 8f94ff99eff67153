"""PyTorch on a rank: torch.distributed released and set up again, its work recorded."""
