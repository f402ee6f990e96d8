"""What client keys may use: meters, the counters behind them, and one allowance per request."""
