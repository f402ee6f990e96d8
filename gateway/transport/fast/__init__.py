"""The fast transport: asyncio protocols over httptools, without tasks, timers or copies per chunk."""
