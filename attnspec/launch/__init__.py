"""Running a plan: jobs, supervision, resuming, collecting."""
