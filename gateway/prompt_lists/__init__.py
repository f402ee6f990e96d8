"""One request with many prompts: cut into parts by shared prefix, asked apart, answered as one."""
