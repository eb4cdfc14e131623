package trace

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/derived/history"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
)

const (
	// before is how long before a time that is known folded files are searched: a conflict is entered with the time at which its call began,
	// and clocks of regions differ.
	before = 5 * time.Minute
	// MaxAfter bounds Query.After.
	MaxAfter = 90 * 24 * time.Hour
	// maxFiles and maxSegments bound what is read of the journal of one region.
	maxFiles    = 256
	maxSegments = 4096
)

// Why a search ended early.
var (
	errManyFiles    = fmt.Errorf("it ended after %d folded files; search less time", maxFiles)
	errManySegments = fmt.Errorf("it ended after %d segments that no reconciler has folded yet", maxSegments)
)

// headers adds the one request that following a journal needs beside those of Store. An object's bytes are read for it, which
// happens for the journal's head alone, and only where that moves meanwhile.
type headers struct{ Store }

func (h headers) Head(ctx context.Context, key string) (objstore.Info, error) {
	_, info, err := h.Get(ctx, key, objstore.GetOptions{})
	return info, err
}

// journal finds the entries of the journal of this region: those of folded files that were written around times which are known, and
// all that is not folded.
func (f *finder) journal(ctx context.Context, times []int64) {
	f.searched = Searched{Region: f.Name}
	err := f.search(ctx, times)
	if errors.Is(err, accept.ErrNoAuthority) {
		err = nil // nothing was ever accepted there
	}
	f.searched.Err = err
}

func (f *finder) search(ctx context.Context, times []int64) error {
	// Whether the bucket is a copy of the authority makes no difference to who looks.
	a, err := accept.InspectAuthority(ctx, f.Store)
	if err != nil {
		return err
	}
	after := max(int64(f.q.After), 0)
	if len(times) > 0 {
		f.searched.From, f.searched.To = times[0]-int64(before), times[len(times)-1]+after
	}
	s := history.Selection{
		Raw: true, Agents: func(agent string) bool { return agent == f.q.Identity.Agent },
		Spans: func(x journal.Span) bool {
			for _, t := range times {
				if x.MaxAt >= t-int64(before) && x.MinAt <= t+after {
					return true
				}
			}
			return false
		},
	}
	r := history.Reader{Store: headers{f.Store}, Authority: a.AuthorityID, Partial: true, Fan: f.fan}
	seen := map[journal.Entry]bool{}
	_, err = r.Read(ctx, s, 0, func(_ context.Context, p history.Page) error {
		for i := range p.Entries {
			e := &p.Entries[i]
			// Equal entries say nothing that one of them does not.
			if e.ID.BootOf() != f.q.Identity.BootOf() || !e.ID.Intersects(f.q.Identity) || seen[*e] {
				continue
			}
			seen[*e] = true
			if err := f.add(entryOf(p.Key, e)); err != nil {
				return err
			}
		}
		// A file that was folded meanwhile comes without its key.
		if p.Key == "" || strings.HasPrefix(p.Key, layout.JournalFoldedPrefix) {
			if f.searched.Files++; f.searched.Files > maxFiles {
				return errManyFiles
			}
		} else if f.searched.Segments++; f.searched.Segments > maxSegments {
			return errManySegments
		}
		return nil
	})
	return err
}

// fan is a journal.Fan over the query's Parallel.
func (f *finder) fan(ctx context.Context, n int, do func(context.Context, int) error) error {
	errs := make([]error, n)
	f.q.Parallel(n, func(i int) { errs[i] = do(ctx, i) })
	return errors.Join(errs...)
}
