//go:build !race

package frame

const strayAllocs = 0
