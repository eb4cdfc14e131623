package main

import (
	"go/ast"
	"go/types"
	"slices"

	"golang.org/x/tools/go/packages"
)

// room is a package seen as its files and the arrows between them. There is an arrow from a
// file to another when it uses something that the other declares: a function, a type, a method,
// a field or a constant.
type room struct {
	name          string
	files, arrows int
	// back is how many arrows point against the best order of the files that was found.
	// In a package that can be read from its leaves upwards it is 0.
	back int
}

func arrowsOf(name string, p *packages.Package) room {
	index := map[string]int{}
	for i, f := range p.Syntax {
		index[p.Fset.File(f.FileStart).Name()] = i
	}
	n := len(p.Syntax)
	uses := make([][]bool, n)
	for i := range uses {
		uses[i] = make([]bool, n)
	}
	for i, f := range p.Syntax {
		ast.Inspect(f, func(node ast.Node) bool {
			id, ok := node.(*ast.Ident)
			if !ok {
				return true
			}
			o := p.TypesInfo.Uses[id]
			if o == nil || o.Pkg() != p.Types || local(o, p.Types) {
				return true
			}
			if j, ok := index[p.Fset.File(o.Pos()).Name()]; ok && j != i {
				uses[i][j] = true
			}
			return true
		})
	}
	r := room{name: name, files: n}
	for i := range uses {
		for j := range uses[i] {
			if uses[i][j] {
				r.arrows++
			}
		}
	}
	r.back = against(uses, order(uses))
	return r
}

// local reports that an object is declared inside a function: it can't cross files.
func local(o types.Object, p *types.Package) bool {
	if v, ok := o.(*types.Var); ok && v.IsField() {
		return false
	}
	if f, ok := o.(*types.Func); ok && f.Signature().Recv() != nil {
		return false
	}
	return o.Parent() != p.Scope()
}

// order gives the files from the top down, so that few arrows point up. Finding the fewest is
// NP-hard, so this is the heuristic of Eades, Lin and Smyth, and then each file is moved to
// its best place until nothing gets better. The result is a function of the input alone.
func order(uses [][]bool) []int {
	left := make([]int, len(uses))
	for i := range left {
		left[i] = i
	}
	var head, tail []int
	for len(left) > 0 {
		best, most := 0, -1<<30
		sink := -1
		for k, i := range left {
			out, in := 0, 0
			for _, j := range left {
				if uses[i][j] {
					out++
				}
				if uses[j][i] {
					in++
				}
			}
			if out == 0 {
				sink = k
				break
			}
			if in == 0 {
				out += len(uses) // a source goes first
			}
			if out-in > most {
				best, most = k, out-in
			}
		}
		if sink >= 0 {
			tail = append(tail, left[sink])
			left = slices.Delete(left, sink, sink+1)
			continue
		}
		head = append(head, left[best])
		left = slices.Delete(left, best, best+1)
	}
	slices.Reverse(tail)
	return improve(uses, append(head, tail...))
}

func improve(uses [][]bool, o []int) []int {
	cost := against(uses, o)
	for better := true; better; {
		better = false
		for from := range o {
			for to := range o {
				moved := slices.Delete(slices.Clone(o), from, from+1)
				moved = slices.Insert(moved, to, o[from])
				if c := against(uses, moved); c < cost {
					o, cost, better = moved, c, true
				}
			}
		}
	}
	return o
}

// against counts the arrows that point from a later file to an earlier one.
func against(uses [][]bool, o []int) (n int) {
	for a, i := range o {
		for _, j := range o[:a] {
			if uses[i][j] {
				n++
			}
		}
	}
	return n
}
