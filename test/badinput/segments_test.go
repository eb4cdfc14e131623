package badinput

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/agent/queue"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// segmentCase spoils a queue of a segment with four batches and one with two.
type segmentCase struct {
	named `yaml:",inline"`
	First bool   `yaml:"first"` // spoil the first segment, not the last
	At    int    `yaml:"at"`    // write Recipe at this offset; negative is from the end
	Cut   int    `yaml:"cut"`   // keep so many bytes; negative: so many fewer
	Whole bool   `yaml:"whole"` // Recipe is the whole file
	More  bool   `yaml:"more"`  // Recipe stands after the end
	As    string `yaml:"as"`    // another file with Recipe in it
	// Recipe of bytes.
	Recipe string `yaml:"recipe"`
	// Pending batches after recovery, Damaged records, and whether bytes were cut or a boot begun.
	Pending int  `yaml:"pending"`
	Damaged int  `yaml:"damaged"`
	Torn    bool `yaml:"torn"`
	NewBoot bool `yaml:"newboot"`
	// Fails: opening says ErrCorrupt.
	Fails bool `yaml:"fails"`
}

func openQueue(dir string) (*queue.Queue, error) {
	return queue.Open(vfs.OS, dir, queue.Options{Agent: "a", MaxBytes: 1 << 20, SegmentBytes: 4 << 10, Policy: queue.RefuseNew,
		Now: time.Now, Log: quietTelemetry().Log})
}

func appendBatch(q *queue.Queue, size int) error {
	_, err := q.Append(queue.Part{Records: 2, Encode: func(identity.Batch) ([]byte, error) { return make([]byte, size), nil }})
	return err
}

// TestSegments opens queues whose files were spoiled.
func TestSegments(t *testing.T) {
	boundMemory(t, 96<<20)
	for _, k := range load[segmentCase](t, "segments") {
		t.Run(k.Name, func(t *testing.T) {
			dir := t.TempDir()
			q, err := openQueue(dir)
			if err != nil {
				t.Fatal(err)
			}
			for range 6 {
				if err := appendBatch(q, 1200); err != nil {
					t.Fatal(err)
				}
			}
			boot, _, next := q.Boot()
			if err := q.Close(); err != nil {
				t.Fatal(err)
			}
			files, err := filepath.Glob(filepath.Join(dir, "*.lmq"))
			if err != nil || len(files) < 2 {
				t.Fatalf("%v, %v", files, err)
			}
			name := files[len(files)-1]
			if k.First {
				name = files[0]
			}
			b, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			recipe := expand(t, k.Recipe, map[string][]byte{"{file}": b})
			switch {
			case k.As != "":
				name, b = filepath.Join(dir, k.As), recipe
			case k.Whole:
				b = recipe
			case k.More:
				b = append(b, recipe...)
			case k.Cut > 0:
				b = b[:k.Cut]
			case k.Cut < 0:
				b = b[:len(b)+k.Cut]
			case k.At < 0:
				copy(b[len(b)+k.At:], recipe)
			default:
				copy(b[k.At:], recipe)
			}
			if err := os.WriteFile(name, b, 0o600); err != nil {
				t.Fatal(err)
			}
			q, err = openQueue(dir)
			if k.Fails {
				if !errors.Is(err, record.ErrCorrupt) {
					t.Errorf("opening gave %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer q.Close()
			r := q.Recovered()
			got := fmt.Sprintf("%d pending, %d damaged, torn %t, new boot %t", r.Entries, r.Damaged, r.CutBytes > 0, r.NewBoot != "")
			if want := fmt.Sprintf("%d pending, %d damaged, torn %t, new boot %t", k.Pending, k.Damaged, k.Torn, k.NewBoot); got != want {
				t.Errorf("got %s (%s), want %s", got, r.NewBoot, want)
			}
			// No number that may have been sent is given again under the same boot.
			if b, _, n := q.Boot(); b == boot && n < next && !k.Torn {
				t.Errorf("the next number is %d, it was %d", n, next)
			}
			if err := appendBatch(q, 10); err != nil {
				t.Errorf("append afterwards: %v", err)
			}
		})
	}
	wantNoPanics(t)
}
