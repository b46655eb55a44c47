"""Access to other libraries' private behaviour, one module for each library, imported only where it is needed."""
