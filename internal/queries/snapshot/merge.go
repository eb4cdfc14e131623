package snapshot

// fan is how many packs of a tier are merged into one.
const fan = 8

// full is the tier of packs that are not merged further: they have at least half of what a pack can hold.
const full = 3

// tier of a pack by how much of the bounds it takes, whichever is more. Tiers are a factor of fan apart, so a
// batch is written about once for each tier.
func tier(r *Ref, limit uint64) int {
	const unit = 1024
	w := max(r.Bytes*unit/MaxPackBytes, r.Batches*unit/limit)
	switch {
	case w < unit/64:
		return 0
	case w < unit/8:
		return 1
	case w < unit/2:
		return 2
	}
	return full
}

// mergePlan returns groups of indexes of packs, each to be merged into one of at most limit batches. With it a
// window has fewer than fan packs of each tier besides full ones. Groups are in the order of the packs: what was
// accepted together expires together.
func mergePlan(packs []Ref, limit uint64) [][]int {
	var tiers [full][]int
	for i := range packs {
		if t := tier(&packs[i], limit); t < full {
			tiers[t] = append(tiers[t], i)
		}
	}
	var plan [][]int
	for _, is := range tiers {
		if len(is) < fan {
			continue
		}
		var group []int
		bytes, batches := uint64(0), uint64(0)
		flush := func() {
			// A single pack would only be copied.
			if len(group) > 1 {
				plan = append(plan, group)
			}
			group, bytes, batches = nil, 0, 0
		}
		for _, i := range is[:fan] {
			r := &packs[i]
			// The tier bounds each pack, not their sum, so a group may have to be split.
			if bytes+r.Bytes > MaxPackBytes || batches+r.Batches > limit {
				flush()
			}
			group = append(group, i)
			bytes += r.Bytes
			batches += r.Batches
		}
		flush()
	}
	return plan
}
