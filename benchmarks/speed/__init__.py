"""How fast a round is, one file each, run by `fedrows bench NAME`; ratios measured side by side."""
