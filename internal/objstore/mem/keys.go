package mem

import (
	"slices"
	"sort"
)

// chunkMax bounds the keys that one insertion moves.
const chunkMax = 512

// keys is a sorted set of strings: a slice of sorted, non-empty chunks.
type keys struct {
	chunks [][]string
}

// chunkOf returns the index of the chunk that contains key or that key is inserted into.
func (k *keys) chunkOf(key string) int {
	i := sort.Search(len(k.chunks), func(i int) bool { return k.chunks[i][0] > key })
	return max(i-1, 0)
}

func (k *keys) insert(key string) {
	if len(k.chunks) == 0 {
		k.chunks = [][]string{{key}}
		return
	}
	c := k.chunkOf(key)
	i, found := slices.BinarySearch(k.chunks[c], key)
	if found {
		return
	}
	chunk := slices.Insert(k.chunks[c], i, key)
	k.chunks[c] = chunk
	if half := len(chunk) / 2; len(chunk) > chunkMax {
		k.chunks[c] = slices.Clip(chunk[:half])
		k.chunks = slices.Insert(k.chunks, c+1, slices.Clone(chunk[half:]))
	}
}

func (k *keys) remove(key string) {
	if len(k.chunks) == 0 {
		return
	}
	c := k.chunkOf(key)
	i, found := slices.BinarySearch(k.chunks[c], key)
	if !found {
		return
	}
	k.chunks[c] = slices.Delete(k.chunks[c], i, i+1)
	if len(k.chunks[c]) == 0 {
		k.chunks = slices.Delete(k.chunks, c, c+1)
	}
}

// from calls fn for every key greater than key, or equal if including, in order, until fn returns false.
func (k *keys) from(key string, including bool, fn func(string) bool) {
	if len(k.chunks) == 0 {
		return
	}
	c := k.chunkOf(key)
	i, found := slices.BinarySearch(k.chunks[c], key)
	if found && !including {
		i++
	}
	for ; c < len(k.chunks); c, i = c+1, 0 {
		for _, s := range k.chunks[c][i:] {
			if !fn(s) {
				return
			}
		}
	}
}
