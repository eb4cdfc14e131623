// Package sketch estimates the number of distinct things in little memory.
package sketch

import (
	"math"
	"math/bits"
)

const (
	// indexBits make 2,048 registers: a standard error of 2.3% in 2 KiB.
	indexBits = 11
	registers = 1 << indexBits
	// rankBits is the number of hash bits in which zeros are counted.
	rankBits = 64 - indexBits
)

// Bytes of a Sketch.
const Bytes = registers

// Sketch estimates how many distinct hashes it was given. It is a HyperLogLog (Flajolet et al. 2007) with the
// estimator of Ertl, "New cardinality estimation algorithms for HyperLogLog sketches" (2017), algorithm 6, which
// needs no tables and no threshold between ranges. The zero value is empty.
type Sketch [registers]uint8

// Add adds a hash, whose bits must be uniform; Mix makes such a hash of any other.
func (s *Sketch) Add(hash uint64) {
	r := &s[hash>>rankBits]
	// A one after the bits that count stops the zeros, so that the rank is bounded.
	*r = max(*r, uint8(bits.LeadingZeros64(hash<<indexBits|1<<(indexBits-1)))+1)
}

// Merge adds everything that o has seen.
func (s *Sketch) Merge(o *Sketch) {
	for i, v := range o {
		s[i] = max(s[i], v)
	}
}

// Adds reports whether s has seen what neither a nor b has, as far as sketches can tell.
func (s *Sketch) Adds(a, b *Sketch) bool {
	for i, v := range s {
		if v > max(a[i], b[i]) {
			return true
		}
	}
	return false
}

// Estimate returns the number of distinct hashes, with a standard error of 2.3%.
func (s *Sketch) Estimate() float64 { return EstimateUnion(s) }

// EstimateUnion returns the number of distinct hashes that the sketches have seen together.
func EstimateUnion(sketches ...*Sketch) float64 {
	var count [rankBits + 2]float64
	for i := range registers {
		v := uint8(0)
		for _, s := range sketches {
			v = max(v, s[i])
		}
		count[v]++
	}
	const m = registers
	z := m * tau(1-count[rankBits+1]/m)
	for k := rankBits; k >= 1; k-- {
		z = 0.5 * (z + count[k])
	}
	z += m * sigma(count[0]/m)
	return m * m / (2 * math.Ln2) / z
}

// sigma corrects for registers that are still empty. It iterates until the sum no longer changes.
func sigma(x float64) float64 {
	if x == 1 {
		return math.Inf(1)
	}
	y, z := 1.0, x
	for {
		x *= x
		before := z
		z += x * y
		y += y
		if z == before {
			return z
		}
	}
}

// tau corrects for registers that are full.
func tau(x float64) float64 {
	if x == 0 || x == 1 {
		return 0
	}
	y, z := 1.0, 1-x
	for {
		x = math.Sqrt(x)
		before := z
		y *= 0.5
		z -= (1 - x) * (1 - x) * y
		if z == before {
			return z / 3
		}
	}
}

// Mix combines two hashes into one whose bits are uniform; it ends with the finalizer of MurmurHash3.
func Mix(a, b uint64) uint64 {
	x := a*0x9e3779b97f4a7c15 + b
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}
