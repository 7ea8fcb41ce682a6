//! Simulated medium, crash enumerator, oracle and kill -9 driver. Tests only.
