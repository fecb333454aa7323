"""What people look at: plans and runs as text, pictures and pages. Nothing here decides."""
