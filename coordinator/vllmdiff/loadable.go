package vllmdiff

import (
	"fmt"

	"github.com/mooncake-sidecar/sidecar/coordinator"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
)

// Loadable reports the first chunk that a load of a lookup's hit would fill and
// that is not stored under the key the load uses. tails are pairs (group,
// tokens), one a group.
func (c *Case) Loadable(hit int, tails [][2]int) error {
	co, err := coordinator.New(c.Config())
	if err != nil {
		return err
	}
	masks, err := co.LoadMask(hit)
	if err != nil {
		return err
	}
	exists := c.StoreFunc()
	for g, m := range masks {
		for i := m.First; i < m.End(); i++ {
			if !m.Has(i) {
				continue
			}
			index := co.HashIndex(g, i)
			if (i+1)*c.Groups[g].B >= hit {
				index = tails[g][1]/c.H - 1
			}
			if index >= c.N || exists(g, index) != kv.Present {
				return fmt.Errorf("a hit of %d tokens loads chunk %d of group %d from hash %d, which is not stored", hit, i, g, index)
			}
		}
	}
	return nil
}
