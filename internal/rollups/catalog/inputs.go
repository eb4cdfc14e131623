package catalog

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math/bits"
	"slices"
	"strconv"

	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// MaxInputBatches bounds the batches of one Inputs.
const MaxInputBatches = 10_000_000

// Run is Batches batches of one boot with Records records each, one after the other from the sequence number
// Start. Agents send batches of equal size, so a run costs the same however long it is.
type Run struct {
	Start, Records, Batches uint64
}

// first returns the first batch of the run as a closed range, and last its last.
func (r Run) first() span { return span{r.Start, r.Start + (r.Records - 1)} }

func (r Run) last() span {
	at := r.Start + (r.Batches-1)*r.Records
	return span{at, at + (r.Records - 1)}
}

type span struct{ start, end uint64 }

func (a span) compare(b span) int {
	return cmp.Or(cmp.Compare(a.start, b.start), cmp.Compare(a.end, b.end))
}

// BootInputs are the batches of one boot.
type BootInputs struct {
	Agent string
	Boot  string
	Runs  []Run
}

func (b BootInputs) boot() identity.Boot { return identity.Boot{Agent: b.Agent, Boot: b.Boot} }

// Inputs is an exact set of accepted batches. It keeps their identities: ranges that touch or overlap are never
// merged, since a batch counts only as the whole that was accepted. The zero value is empty.
type Inputs struct {
	boots   []BootInputs
	batches uint64
	records uint64
}

// NewInputs returns the set of ids; order and repetitions don't matter. An invalid identity is an error.
func NewInputs(ids []identity.Batch) (Inputs, error) {
	ids = slices.Clone(ids)
	slices.SortFunc(ids, identity.Batch.Compare)
	var in Inputs
	for i, id := range ids {
		if i > 0 && id == ids[i-1] {
			continue
		}
		if err := id.Validate(); err != nil {
			return Inputs{}, fmt.Errorf("inputs: %w", err)
		}
		in.add(id)
	}
	return in, in.check()
}

func (in *Inputs) add(id identity.Batch) {
	n := len(in.boots)
	if n == 0 || in.boots[n-1].boot() != id.BootOf() {
		in.boots = append(in.boots, BootInputs{Agent: id.Agent, Boot: id.Boot})
		n++
	}
	b := &in.boots[n-1]
	if k := len(b.Runs); k > 0 && follows(b.Runs[k-1], id.SeqStart, id.Count()) {
		b.Runs[k-1].Batches++
		return
	}
	b.Runs = append(b.Runs, Run{id.SeqStart, id.Count(), 1})
}

// follows reports whether a batch of count records from start continues the run.
func follows(r Run, start, count uint64) bool {
	end := r.last().end
	return r.Records == count && end+1 == start && start != 0
}

// check computes the sums, and refuses everything that NewInputs would not have written, so that equal sets have
// equal bytes and one digest.
func (in *Inputs) check() error {
	in.batches, in.records = 0, 0
	for i, b := range in.boots {
		if err := b.boot().Validate(); err != nil {
			return fmt.Errorf("inputs: %w", err)
		}
		if i > 0 && in.boots[i-1].boot().Compare(b.boot()) >= 0 {
			return fmt.Errorf("inputs: boot %v is out of order", b.boot())
		}
		if len(b.Runs) == 0 {
			return fmt.Errorf("inputs: boot %v has no batches", b.boot())
		}
		for k, r := range b.Runs {
			if err := in.sum(r); err != nil {
				return fmt.Errorf("inputs: boot %v: %w", b.boot(), err)
			}
			if k == 0 {
				continue
			}
			before := b.Runs[k-1]
			if before.last().compare(r.first()) >= 0 || follows(before, r.Start, r.Records) {
				return fmt.Errorf("inputs: boot %v: the run from %d is out of order or continues the one before", b.boot(), r.Start)
			}
		}
	}
	return nil
}

func (in *Inputs) sum(r Run) error {
	hi, n := bits.Mul64(r.Records, r.Batches)
	_, over := bits.Add64(r.Start, n-1, 0)
	if r.Records == 0 || r.Batches == 0 || hi != 0 || over != 0 {
		return fmt.Errorf("run %v is no range of sequence numbers", r)
	}
	var carry uint64
	in.records, carry = bits.Add64(in.records, n, 0)
	if in.batches += r.Batches; carry != 0 || r.Batches > MaxInputBatches || in.batches > MaxInputBatches {
		return fmt.Errorf("over %d batches, or more records than can be counted", MaxInputBatches)
	}
	return nil
}

// Batches is the number of batches.
func (in Inputs) Batches() uint64 { return in.batches }

// Records is the sum of the batches' record counts.
func (in Inputs) Records() uint64 { return in.records }

// Boots in order. The caller must not change them.
func (in Inputs) Boots() []BootInputs { return in.boots }

// All gives the identities in order.
func (in Inputs) All() iter.Seq[identity.Batch] {
	return func(yield func(identity.Batch) bool) {
		for _, b := range in.boots {
			for _, r := range b.Runs {
				for i := range r.Batches {
					at := r.Start + i*r.Records
					if !yield(identity.Batch{Agent: b.Agent, Boot: b.Boot, SeqStart: at, SeqEnd: at + (r.Records - 1)}) {
						return
					}
				}
			}
		}
	}
}

// Covers reports whether exactly this batch is in the set.
func (in Inputs) Covers(id identity.Batch) bool {
	i, ok := slices.BinarySearchFunc(in.boots, id.BootOf(), func(b BootInputs, want identity.Boot) int { return b.boot().Compare(want) })
	if !ok || id.SeqEnd < id.SeqStart {
		return false
	}
	runs, want := in.boots[i].Runs, span{id.SeqStart, id.SeqEnd}
	k, exact := slices.BinarySearchFunc(runs, want, func(r Run, w span) int { return r.first().compare(w) })
	if exact {
		return true
	}
	if k == 0 {
		return false
	}
	// off can't be negative, as runs are sorted; a batch belongs to the run when it begins on a multiple of the
	// run's batch size.
	r := runs[k-1] // the only candidate: runs are in the order of their batches
	off := id.SeqStart - r.Start
	return id.Count() == r.Records && off%r.Records == 0 && off/r.Records < r.Batches
}

// Contains reports whether every batch of o is in the set.
func (in Inputs) Contains(o Inputs) bool {
	// The counts decide most calls without a walk over batches.
	if o.batches > in.batches {
		return false
	}
	for id := range o.All() {
		if !in.Covers(id) {
			return false
		}
	}
	return true
}

// Digest is the SHA-256 of the canonical JSON.
func (in Inputs) Digest() identity.Digest { return identity.Sum(record.JSON(in)) }

// MarshalJSON writes the canonical form: an array of boots with their runs.
func (in Inputs) MarshalJSON() ([]byte, error) {
	b := []byte{'['}
	for i, boot := range in.boots {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"agent_id":`...)
		b = record.AppendString(b, boot.Agent)
		b = append(b, `,"boot_id":`...)
		b = record.AppendString(b, boot.Boot)
		b = append(b, `,"runs":[`...)
		for k, r := range boot.Runs {
			if k > 0 {
				b = append(b, ',')
			}
			b = r.append(b)
		}
		b = append(b, "]}"...)
	}
	return append(b, ']'), nil
}

// append writes [start,records,batches].
func (r Run) append(b []byte) []byte {
	b = strconv.AppendUint(append(b, '['), r.Start, 10)
	b = strconv.AppendUint(append(b, ','), r.Records, 10)
	b = strconv.AppendUint(append(b, ','), r.Batches, 10)
	return append(b, ']')
}

// UnmarshalJSON reads exactly what MarshalJSON writes.
func (in *Inputs) UnmarshalJSON(b []byte) error {
	var boots []struct {
		Agent string          `json:"agent_id"`
		Boot  string          `json:"boot_id"`
		Runs  json.RawMessage `json:"runs"`
	}
	if err := json.Unmarshal(b, &boots); err != nil {
		return err
	}
	var v Inputs
	for _, boot := range boots {
		runs, err := parseRuns(boot.Runs)
		if err != nil {
			return err
		}
		v.boots = append(v.boots, BootInputs{boot.Agent, boot.Boot, runs})
	}
	if err := v.check(); err != nil {
		return err
	}
	*in = v
	return nil
}

var errRuns = errors.New("inputs: runs are not an array of three numbers each")

// parseRuns reads [[start,records,batches],…] without white space. It is written by hand because an hour can have
// a hundred thousand runs.
func parseRuns(b []byte) ([]Run, error) {
	if len(b) < 2 || b[0] != '[' || b[len(b)-1] != ']' {
		return nil, errRuns
	}
	b = b[1 : len(b)-1]
	runs := make([]Run, 0, bytes.Count(b, []byte{'['}))
	for len(b) > 0 {
		if len(runs) > 0 {
			if b[0] != ',' {
				return nil, errRuns
			}
			b = b[1:]
		}
		end := bytes.IndexByte(b, ']')
		if end < 1 || b[0] != '[' {
			return nil, errRuns
		}
		first, rest, ok := bytes.Cut(b[1:end], []byte{','})
		second, third, ok2 := bytes.Cut(rest, []byte{','})
		b = b[end+1:]
		var r Run
		var errs [3]error
		r.Start, errs[0] = strconv.ParseUint(string(first), 10, 64)
		r.Records, errs[1] = strconv.ParseUint(string(second), 10, 64)
		r.Batches, errs[2] = strconv.ParseUint(string(third), 10, 64)
		if !ok || !ok2 || errs != [3]error{} {
			return nil, errRuns
		}
		runs = append(runs, r)
	}
	return runs, nil
}
