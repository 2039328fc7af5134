"""What is written for students and instructors."""
