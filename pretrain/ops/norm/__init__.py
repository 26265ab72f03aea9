"""Layer norms, alone and fused with a residual sum."""
