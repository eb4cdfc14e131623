package mem

import (
	"context"
	"strings"
	"time"

	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// List reads one page.
func (s *Store) List(ctx context.Context, o objstore.ListOptions) (objstore.Page, error) {
	if err := canceled(ctx, objstore.ErrUnavailable); err != nil {
		return objstore.Page{}, &objstore.Error{Op: "list", Key: o.Prefix, Err: err}
	}
	limit := o.Limit
	if limit <= 0 || limit > objstore.MaxListLimit {
		limit = objstore.MaxListLimit
	}
	s.mu.Lock()
	defer s.mu.Unlock()

	page := objstore.Page{Date: s.date().Truncate(time.Second)} // as HTTP's Date is
	last, n := "", 0                                            // last entry, entries
	start, including := o.Prefix, true
	if after := objstore.SkipGroup(o.StartAfter, o.Prefix, o.Delimiter); after >= start && o.StartAfter != "" {
		start, including = after, false
	}
	// Behind a group the search starts again, so that the number of keys in the group does not matter.
	for more := true; more; {
		more = false
		s.keys.from(start, including, func(key string) bool {
			if !strings.HasPrefix(key, o.Prefix) {
				return false
			}
			// Next is set only when there is a further entry: a full last page must not promise another
			// one.
			if n == limit {
				page.Next = last
				return false
			}
			n++
			if g, ok := objstore.Group(key, o.Prefix, o.Delimiter); ok {
				page.CommonPrefixes = append(page.CommonPrefixes, g)
				last = g
				start, including, more = objstore.SkipGroup(g, o.Prefix, o.Delimiter), false, true
				return false
			}
			info := s.objects[key].info
			// S3 listings have no checksums, and nobody should come to rely on one here.
			info.SHA256 = [32]byte{}
			page.Objects = append(page.Objects, info)
			last = key
			return true
		})
	}
	return page, nil
}
