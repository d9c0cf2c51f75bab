"""How well a checkpoint repeats an expert's walks, action by action: loss and accuracy without a simulator."""
