package objstore

import (
	"context"
	"iter"
)

// List iterates over all objects that o selects, in key order, page by page. o.Limit is the
// size of a page, and objects that o.Delimiter groups are left out. Each page is one List of
// l, so a deadline for each request applies to a page. An error ends the iteration and comes
// with the zero Info.
func List(ctx context.Context, l Lister, o ListOptions) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		for page, err := range pages(ctx, l, o) {
			if err != nil {
				yield(Info{}, err)
				return
			}
			for _, i := range page.Objects {
				if !yield(i, nil) {
					return
				}
			}
		}
	}
}

// Groups iterates over the common prefixes that o selects, in key order, as List does
// over the objects.
func Groups(ctx context.Context, l Lister, o ListOptions) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for page, err := range pages(ctx, l, o) {
			if err != nil {
				yield("", err)
				return
			}
			for _, p := range page.CommonPrefixes {
				if !yield(p, nil) {
					return
				}
			}
		}
	}
}

func pages(ctx context.Context, l Lister, o ListOptions) iter.Seq2[Page, error] {
	return func(yield func(Page, error) bool) {
		for {
			page, err := l.List(ctx, o)
			// Next decides, and not the number of entries: a page may be short before the end.
			if !yield(page, err) || err != nil || page.Next == "" {
				return
			}
			o.StartAfter = page.Next
		}
	}
}
