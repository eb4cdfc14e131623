package demo

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/derived/fsck"
	"lightmetrics.dev/lightmetrics/internal/harness/load"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// regionsTally is what each side counts once nobody sends.
type regionsTally struct {
	d    *regions
	seen *load.Contested

	rows, sides [][]string
}

// count compares every agent's numbers, the regions' journals and buckets, and every region's PromQL.
func (t *regionsTally) count(ctx context.Context) error {
	t.rows, t.sides = nil, nil
	homes, err := load.ReadHomes(ctx, t.d.r, func(identity.Boot) bool { return true })
	if err != nil {
		return err
	}
	for _, c := range t.d.r.Of {
		numbered, err := c.Numbered()
		if err != nil {
			return err
		}
		if err := t.agent(homes, c.AgentID(), numbered); err != nil {
			return err
		}
	}
	samples, copies, err := t.samples(ctx, homes)
	if err != nil {
		return err
	}
	t.sides = append(t.sides, []string{"buckets", "samples in accepted frames, each in its home region (without staleness markers)", fmt.Sprint(samples)},
		[]string{"buckets", "copies of batches in regions that are not their home, which count nowhere", fmt.Sprint(copies)})
	for i, c := range t.d.r.Of {
		counted, warnings, err := c.CountSamples(ctx, time.Now())
		if err != nil {
			return err
		}
		if counted != float64(samples) || len(warnings) > 0 {
			return fmt.Errorf("the regions have %d samples, PromQL in %s counts %.0f %v", samples, t.d.r.Names[i], counted, warnings)
		}
		t.sides = append(t.sides, []string{"PromQL in " + t.d.r.Names[i], "sum(count_over_time(…)) over every metric of all regions", fmt.Sprintf("%.0f", counted)})
	}
	return nil
}

// agent adds an agent's row: its batches of all regions follow one another, from 1 to what it has numbered.
func (t *regionsTally) agent(homes load.Homes, agent string, numbered uint64) error {
	var batches []identity.Batch
	in := map[string]int{}
	for region, counted := range homes {
		for id := range counted {
			if id.Agent == agent {
				batches = append(batches, id)
				in[region]++
			}
		}
	}
	slices.SortFunc(batches, func(a, b identity.Batch) int { return int(int64(a.SeqStart - b.SeqStart)) })
	next, gaps, overlaps := uint64(1), 0, 0
	for _, b := range batches {
		switch {
		case b.SeqStart > next:
			gaps++
		case b.SeqStart < next:
			overlaps++
		}
		next = max(next, b.SeqEnd+1)
	}
	var where []string
	for _, name := range t.d.r.Names {
		where = append(where, fmt.Sprintf("%s %d", name, in[name]))
	}
	t.rows = append(t.rows, []string{agent, fmt.Sprint(numbered), fmt.Sprint(len(batches)), strings.Join(where, ", "), fmt.Sprint(gaps), fmt.Sprint(overlaps)})
	if gaps+overlaps > 0 || next != numbered+1 {
		return fmt.Errorf("%s numbered %d records; the regions count %d batches up to %d, with %d gaps and %d overlaps", agent, numbered, len(batches), next-1, gaps, overlaps)
	}
	return nil
}

// samples reads every frame of every region: how many samples batches have in their homes, and how many manifests are
// copies elsewhere.
func (t *regionsTally) samples(ctx context.Context, homes load.Homes) (samples uint64, copies int, err error) {
	for i, c := range t.d.r.Of {
		store, err := c.OpenStore(ctx)
		if err != nil {
			return 0, 0, err
		}
		name := t.d.r.Names[i]
		found, foreign := 0, 0
		r, err := fsck.Run(ctx, store, fsck.Options{AuthorityID: c.AuthorityID(), OnBatch: func(m accept.Manifest, _ *frame.Batch) {
			if e, ok := homes[name][m.Identity]; ok && e.SHA256 == m.FrameSHA256 {
				found++
			} else {
				foreign++
			}
		}})
		if err != nil {
			return 0, 0, err
		}
		if found != len(homes[name]) || foreign > 0 {
			return 0, 0, fmt.Errorf("%s counts %d batches, of which its bucket has %d, and %d that it does not count", name, len(homes[name]), found, foreign)
		}
		samples += r.Samples
		copies += int(r.Journal.Unasked)
	}
	return samples, copies, nil
}
