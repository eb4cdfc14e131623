package main

import (
	"fmt"
	"strings"
	"sync"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// The identities that schedules draw from: two agents, ranges that overlap, and
// two versions of the bytes of each.
const variants = 2

var ranges = [][2]uint64{{10, 19}, {20, 29}, {15, 24}, {30, 34}}

// frames are real ones, because the garbage collector reads their headers. Made once.
var frames = sync.OnceValue(func() map[string]accept.Submission {
	out := map[string]accept.Submission{}
	for _, agent := range []string{"agent-1", "agent-2"} {
		for r, seqs := range ranges {
			for v := range variants {
				out[frameName(agent, r, v)] = encode(identity.Batch{Agent: agent, Boot: "boot-1", SeqStart: seqs[0], SeqEnd: seqs[1]}, v)
			}
		}
	}
	return out
})

func frameName(agent string, r, v int) string { return fmt.Sprintf("%s/%d/v%d", agent, r, v) }

func encode(id identity.Batch, variant int) accept.Submission {
	b := frame.NewBuilder()
	s, err := b.AddSeries([]series.Label{{Name: "__name__", Value: "sim"}}, series.Gauge, "", 0)
	if err != nil {
		panic(err)
	}
	for i := range id.Count() {
		if err := b.Append(s, int64(i+1)*1e9, float64(variant*1000)+float64(i)); err != nil {
			panic(err)
		}
	}
	batch, err := b.Build(id.BootOf(), id.SeqStart)
	if err != nil {
		panic(err)
	}
	body, err := frame.Encode(nil, batch)
	if err != nil {
		panic(err)
	}
	sum, err := frame.Inspect(body, frame.Limits{})
	if err != nil || sum.Identity != id {
		panic(fmt.Sprintf("frame of %s: %v", id, err))
	}
	return accept.Submission{
		Frame: body, Identity: id, SHA256: identity.Sum(body), Records: id.Count(),
		MinTime: sum.MinTime, MaxTime: sum.MaxTime, WireVersion: uint32(sum.WireVersion), FrameVersion: uint32(sum.FrameVersion),
	}
}

// readable puts names in the place of hashes and hex, for traces.
var readable = sync.OnceValue(func() *strings.Replacer {
	var pairs []string
	for name, s := range frames() {
		d := s.SHA256.String()
		pairs = append(pairs, "sha256/"+d[:2]+"/"+d[2:4]+"/"+d, "<"+name+">", d, "<"+name+">")
	}
	for _, n := range []string{"agent-1", "agent-2", "boot-1"} {
		pairs = append(pairs, layout.HexText(n), n)
	}
	for _, r := range ranges {
		pairs = append(pairs, layout.SeqName(r[0], r[1]), fmt.Sprintf("%d-%d", r[0], r[1]))
	}
	return strings.NewReplacer(pairs...)
})
