//go:build race

package frame

// strayAllocs is what the race detector adds: pools drop at random.
const strayAllocs = 4
