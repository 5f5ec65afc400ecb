"""MLX: mlx-lm."""
