"""The frozen path: features of a pretrained network, computed once, and linear heads trained on them out of fold."""
