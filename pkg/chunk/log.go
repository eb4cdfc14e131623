package chunk

import (
	"math"
	"math/bits"
)

// Costs count in 1/1024 of a bit: whole numbers are the same on every machine.
const (
	logBits = 10
	logUnit = 1 << logBits
	logs    = 1 << 12
)

var logTable = func() (t [logs]uint32) {
	for i := 1; i < logs; i++ {
		t[i] = uint32(math.Round(math.Log2(float64(i)) * logUnit))
	}
	return t
}()

// logOf is about log2(n) in logUnits; n is not 0.
func logOf(n uint32) uint32 {
	if n < logs {
		return logTable[n]
	}
	shift := bits.Len32(n) - bits.Len32(logs-1)
	return logTable[n>>shift] + uint32(shift)<<logBits
}
