"""What a member of each side runs in a bench of processes; one module per side."""
