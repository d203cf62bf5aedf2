"""Running the plans of `attnspec.sharding` over torch.distributed with any kernel."""
