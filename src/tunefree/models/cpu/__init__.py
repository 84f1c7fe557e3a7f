"""Operations of batched clients for the compiler on a CPU."""
