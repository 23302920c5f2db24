"""From two logs to one comparison."""
