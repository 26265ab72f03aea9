"""Layer norms, plain and fused with a residual sum."""
