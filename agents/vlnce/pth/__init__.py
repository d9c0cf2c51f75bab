"""Released checkpoints (.pth): a reader of their pickles that runs nothing, and the network made from them."""
