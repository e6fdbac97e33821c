"""What a user's tests get: pytest fixtures with a real broker behind them."""
